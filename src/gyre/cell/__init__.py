"""The cell process: serves or trains one replica."""
