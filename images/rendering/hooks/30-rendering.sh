# Says what draws. GPUSPAWNER_RENDERER is what EGL answered, such as llvmpipe, which is the processor.
if [ -z "${DISPLAY:-}" ]; then export VTK_DEFAULT_OPENGL_WINDOW="${VTK_DEFAULT_OPENGL_WINDOW:-vtkEGLRenderWindow}"; fi
GPUSPAWNER_RENDERER=$(eglinfo -B 2>/dev/null | sed -n 's/^OpenGL core profile renderer: *//p' | head -n 1)
export GPUSPAWNER_RENDERER
case "$GPUSPAWNER_RENDERER" in
  "") echo "rendering: EGL does not work here, so that nothing can be drawn" >&2 ;;
  *llvmpipe* | *softpipe* | *swrast*) echo "rendering: no card draws here; the processor does, with $GPUSPAWNER_RENDERER" >&2 ;;
  *) echo "rendering: $GPUSPAWNER_RENDERER draws" >&2 ;;
esac
# Scenes reach the browser through Jupyter's own connection, or else through its proxy, below the path that the hub gave.
export PYVISTA_TRAME_SERVER_PROXY_PREFIX="${JUPYTERHUB_SERVICE_PREFIX:-/}proxy/"
