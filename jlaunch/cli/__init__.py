"""The door: parse, call, print, exit code. Nothing is decided here."""
