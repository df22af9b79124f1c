"""Operations written for the processor where the library's are slow."""
