# Says once, in the notebook that draws first, when the processor draws in place of a card.
def _say_who_draws() -> None:
    import os
    import sys

    renderer = os.environ.get("GPUSPAWNER_RENDERER", "")
    shell = get_ipython()  # noqa: F821

    def said_once(_result: object) -> None:
        if "vtkmodules.vtkRenderingOpenGL2" in sys.modules:
            shell.events.unregister("post_run_cell", said_once)
            print(f"No card draws here. The processor does, with {renderer}.", file=sys.stderr)

    if any(name in renderer for name in ("llvmpipe", "softpipe", "swrast")):
        shell.events.register("post_run_cell", said_once)


_say_who_draws()
del _say_who_draws
