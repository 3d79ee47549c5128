"""Where the draws of a run go while it goes on: a contract, and one place for each module here."""
