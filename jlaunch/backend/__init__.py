"""The collectives: a C++20 island that imports nothing of jlaunch (DESIGN 5)."""
