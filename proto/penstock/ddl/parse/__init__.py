"""Text into statements; what is not understood to the last word is refused."""
