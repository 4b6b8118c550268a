"""What a normal client notices while another one attacks the service."""
