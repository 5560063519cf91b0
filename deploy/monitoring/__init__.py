"""Monitoring: alerts, a runbook and a dashboard, all generated from tables."""
