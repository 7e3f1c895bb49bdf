"""Who held what when, what it cost and what is charged for it: the chain of rows, the accounts, exports and reports."""
