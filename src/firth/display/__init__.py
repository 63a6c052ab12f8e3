"""What a person looks at: tables of runs, their curves, and the fields of recipes."""
