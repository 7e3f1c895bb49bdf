# Says what draws. GPUSPAWNER_RENDERER is the driver that EGL found, or llvmpipe: the processor.
if [ -z "${DISPLAY:-}" ]; then export VTK_DEFAULT_OPENGL_WINDOW="${VTK_DEFAULT_OPENGL_WINDOW:-vtkEGLRenderWindow}"; fi
drivers=$(eglinfo 2>/dev/null | sed -n 's/^EGL driver name: *//p; s/^EGL vendor string: *\(NVIDIA\).*/\1/p' | sort -u)
card=$(echo "$drivers" | grep -v swrast | head -n 1)
export GPUSPAWNER_RENDERER="${card:-${drivers:+llvmpipe}}"
case "$GPUSPAWNER_RENDERER" in
  "") echo "rendering: EGL does not work here, so that nothing can be drawn" >&2 ;;
  llvmpipe) echo "rendering: no card draws here; the processor does, with Mesa's llvmpipe" >&2 ;;
  *) echo "rendering: a card draws, by the driver $GPUSPAWNER_RENDERER" >&2 ;;
esac
unset drivers card
# Scenes reach the browser through Jupyter's own connection, or else through its proxy, below the path that the hub gave.
export PYVISTA_TRAME_SERVER_PROXY_PREFIX="${JUPYTERHUB_SERVICE_PREFIX:-/}proxy/"
