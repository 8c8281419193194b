"""How to touch the world: one port a file, no decisions."""
