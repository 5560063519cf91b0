"""Command: `python -m pumpclient.binlogctl`, the same as the `binlogctl` script."""

from __future__ import annotations

from pumpclient.binlogctl import main

raise SystemExit(main())
