"""What an execution left behind becomes a reward."""
