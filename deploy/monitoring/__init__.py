"""Monitoring: alerts, a runbook and a dashboard, all made from tables of what they are about."""
