"""Tests of the decision core: feed events, compare actions; no clock, no process, no mock."""
