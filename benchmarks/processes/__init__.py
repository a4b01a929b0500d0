"""Planted faults in real processes: torchrun, gloo, the emulated device."""
