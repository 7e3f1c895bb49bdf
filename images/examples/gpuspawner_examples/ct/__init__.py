"""Computed tomography of a breathing phantom, in PyTorch, on a card or the processor.

`phantoms` has bodies for which the right answer is known, `breathing` scans them while they breathe, `filtered` and
`iterative` reconstruct, `quality` says how far off that is, and `fit` which size a share of a card holds.

Lengths are in millimetres, angles in radians, attenuation in 1/mm. A volume is a float32 tensor (z, y, x), projections
are (views, rows, columns).
"""
