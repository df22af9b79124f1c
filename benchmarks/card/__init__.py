"""What ``make gpu`` measures and checks on a card, section by section."""
