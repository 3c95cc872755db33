"""Frames: numpy columns of one length, and the bytes that they are kept as."""
