"""What draws are judged by, and the verdict."""
