"""Judges behind the Evaluator port."""
