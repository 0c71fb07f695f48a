"""Which rows make up which batch, and how far an epoch may go. Pure: reads no data."""
