# One address of each kind.

require "sinatra"

# Threads of one process, as Puma runs it; pages of errors as visitors see them.
set :environment, :production
set :root, __dir__
enable :sessions
set :session_secret, "0123456789abcdef" * 8
use Rack::Protection::AuthenticityToken

get "/" do
  session[:visits] = (session[:visits] || 0) + 1
  "visit #{session[:visits]} of #{request.url} for #{request.ip}"
end

get "/form" do
  "<input name=\"authenticity_token\" value=\"#{Rack::Protection::AuthenticityToken.token(session)}\">"
end

post "/form" do
  status 201
  "thank you, #{params["name"]}"
end

post "/upload" do
  status 201
  file = params["file"]
  "#{file["filename"]} #{file["tempfile"].size}"
end

get "/stream" do
  headers "X-Accel-Buffering" => "no", "Content-Type" => "text/plain"
  stream do |out|
    out << "begun\n"
    sleep 0.01 until File.exist?(File.join(settings.root, "go"))
    out << "ended\n"
  end
end

get "/broken" do
  raise "broken"
end

not_found { "nothing of that name" }
error { "something is broken" }
