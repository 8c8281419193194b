"""How it looks. Pure: values in, text out."""
