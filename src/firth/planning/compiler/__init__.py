"""What the compiler says of a program: its operations, their time on a chip, its memory."""
