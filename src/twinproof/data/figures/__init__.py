"""Images that are made up by a program: public, because nobody's record is in them."""
