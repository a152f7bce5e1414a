"""Verified fakes for every port, for tests here and elsewhere."""
