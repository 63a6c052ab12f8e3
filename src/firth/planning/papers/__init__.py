"""Rules and tables that papers print, computed again."""
