"""What all experiments share: from a config to measurements on disk, pictures and a summary."""
