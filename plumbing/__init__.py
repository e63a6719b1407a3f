"""What every command needs and no reader of the method does. Nothing here imports anything of ours from elsewhere."""
