"""Runs the steps of jobs: declared ones of a flow, ones that a handler makes, and the journal of both."""
