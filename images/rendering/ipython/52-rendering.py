# Says once, in the notebook that draws first, when the processor draws in place of a card.
def _say_who_draws() -> None:
    import os
    import sys

    shell = get_ipython()  # noqa: F821

    def said_once(_result: object) -> None:
        if "vtkmodules.vtkRenderingOpenGL2" in sys.modules:
            shell.events.unregister("post_run_cell", said_once)
            print("No card draws here. The processor does, with Mesa's llvmpipe.", file=sys.stderr)

    if os.environ.get("GPUSPAWNER_RENDERER") == "llvmpipe":
        shell.events.register("post_run_cell", said_once)


_say_who_draws()
del _say_who_draws
