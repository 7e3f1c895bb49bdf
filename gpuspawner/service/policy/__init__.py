"""Who may have what: the policy file, what it means for a person, and who that person is."""
