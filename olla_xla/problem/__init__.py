"""What is planned, and the answer: tensor graphs, plans and their files, options."""
