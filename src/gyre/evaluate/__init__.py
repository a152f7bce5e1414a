"""What an execution left behind gets an assessment, or stays unresolved."""
