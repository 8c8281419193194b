"""What to do: pure values and machines. No clock, socket, thread, file or log in here."""
