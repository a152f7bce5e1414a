"""Trajectory trees and calls, for people."""
