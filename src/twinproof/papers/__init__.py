"""The published experiments as data: what each table and figure shows, the numbers it prints, and how to run it again."""
