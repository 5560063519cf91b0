"""What an operator meets, in one process: started, killed, asked, and judged in the end."""
