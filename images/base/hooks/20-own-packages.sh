# Where `pip install` puts what the image does not have. Kernels look there from their start only if it is there.
mkdir -p "$HOME/.local/lib/$(basename /opt/gpuspawner/lib/python3*)/site-packages" || true
