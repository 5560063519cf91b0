"""Complete programs that use Penstock; each of them runs as a test."""
