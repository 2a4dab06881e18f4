"""Us beside the peers, measured in one sitting and printed as ratios."""
