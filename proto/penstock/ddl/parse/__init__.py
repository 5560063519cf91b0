"""Parses text into statements; text that is not understood to the last word is refused."""
