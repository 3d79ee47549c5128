"""What a user's config names: objects of their modules, columns of their files, and models made of these."""
