"""Messages about a run to chats and webhooks."""
