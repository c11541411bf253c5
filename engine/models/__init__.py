"""Small trained target/draft pairs, the prompt sets, and the code that trained and converts them."""
