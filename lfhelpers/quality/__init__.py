"""Quality: the gates that a lever must pass before its speed counts."""
