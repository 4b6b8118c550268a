"""What keeps a web page of others from using, or showing, a service that its visitor can reach."""
