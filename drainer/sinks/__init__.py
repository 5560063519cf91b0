"""Where the changes land: `protocol` is the promise, and each folder a downstream."""
