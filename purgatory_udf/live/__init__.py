"""What a followed replay knows now: said by its queries batch by batch, kept in small files, shown by `top`."""
